"""What a client's certificate calls its owner: the user's name for the mechanism EXTERNAL.

The certificate is as Python's `ssl` gives it: `subject` is a tuple of relative names, each a tuple of pairs, and `subjectAltName`
one of pairs. A certificate without such a name names nobody, and its client is not offered EXTERNAL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DISTINGUISHED_NAME: Final = "distinguished_name"
COMMON_NAME: Final = "common_name"

# As RabbitMQ shortens them in a distinguished name.
_SHORT: Final = {
    "commonName": "CN",
    "surname": "SN",
    "serialNumber": "SERIALNUMBER",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "userId": "UID",
}
# Python's name for each kind of alternative name, by RabbitMQ's.
SAN_TYPES: Final = {"dns": "DNS", "ip": "IP Address", "email": "email", "uri": "URI", "other_name": "othername"}


def certificate_name(certificate: Mapping[str, Any], source: str, san_type: str, san_index: int) -> str:
    """The name, or "" where there is none. `source` and the other two are the settings ssl_cert_login_*."""
    if source == DISTINGUISHED_NAME:
        return ",".join(_relative_name(part) for part in reversed(certificate.get("subject", ())))
    if source == COMMON_NAME:
        return ",".join(value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName")
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == SAN_TYPES[san_type]]
    return str(names[san_index]) if san_index < len(names) else ""


def _relative_name(part: tuple[tuple[str, str], ...]) -> str:
    return "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part)


def _escaped(value: str) -> str:
    """RFC 4514, section 2.4."""
    text = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if len(text) > 1 and text.endswith(" "):
        text = text[:-1] + "\\ "
    return text
