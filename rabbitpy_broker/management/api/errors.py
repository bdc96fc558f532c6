"""What a request is refused with: RabbitMQ's statuses, and its `error` and `reason`, which clients compare."""

from __future__ import annotations

from rabbitpy_broker.errors import ACCESS_REFUSED, NOT_ALLOWED, NOT_FOUND, REPLY_NAMES, AmqpError, BrokerError

REALM = 'Basic realm="RabbitMQ Management"'


class ApiError(BrokerError):
    """A refusal. `reason` is a text or, as RabbitMQ has it, a list. Without an `error` the body is empty."""

    def __init__(self, status: int, error: str = "", reason: object = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.headers = headers or {}
        self.body: dict[str, object] | None = {"error": error, "reason": reason} if error else None


def not_found() -> ApiError:
    return ApiError(404, "Object Not Found", "Not Found")


def no_such(reason: str) -> ApiError:
    """404 for what a write needs and is not there."""
    return ApiError(404, "not_found", reason)


def bad_request(reason: object, error: str = "bad_request") -> ApiError:
    return ApiError(400, error, reason)


def key_missing(key: str) -> ApiError:
    return bad_request(f"[{{key_missing,{key}}}]")


def invalid(text: str) -> ApiError:
    """400 for what a policy, a limit or a parameter cannot be; `text` may have said so already."""
    return bad_request(text if text.startswith("Validation failed") else f"Validation failed\n\n{text}\n")


def not_authorised(reason: str) -> ApiError:
    """401, and not 403, without WWW-Authenticate: the browser is not to ask for another password."""
    return ApiError(401, "not_authorised", reason)


def login_failed(*, ask: bool = True) -> ApiError:
    """`ask` has a browser ask for another password."""
    return ApiError(401, "not_authorized", "Login failed", {"WWW-Authenticate": REALM} if ask else None)


def no_credentials() -> ApiError:
    return ApiError(401, headers={"WWW-Authenticate": REALM})


def of_amqp(error: AmqpError) -> ApiError:
    """What a declaration, a deletion or a binding over AMQP would have been closed with."""
    if error.code == NOT_FOUND:
        return no_such(error.text)
    if error.code in (ACCESS_REFUSED, NOT_ALLOWED):
        return not_authorised("Access refused.")
    return bad_request(error.text)


def code_and_text(error: AmqpError) -> str:
    """`406 PRECONDITION_FAILED - text`."""
    return f"{error.code} {REPLY_NAMES.get(error.code, '')} - {error.text}"
