"""Django without a project: the settings that these tests need."""

from __future__ import annotations

import django
from django.conf import settings


def pytest_configure() -> None:
    settings.configure(
        INSTALLED_APPS=["shop"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        AMQP_URL="",
    )
    django.setup()
