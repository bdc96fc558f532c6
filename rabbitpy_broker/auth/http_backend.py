"""The HTTP back end: who may log in and what they may do is asked of a web server, with RabbitMQ's parameters and answers.

  user_path      username, password                                           allow and tags, or deny
  vhost_path     username, vhost, ip, tags                                    allow or deny
  resource_path  username, vhost, resource, name, permission, tags            allow or deny
  topic_path     the same, resource=topic, routing_key, variable_map.*        allow or deny

What must stay true: nobody waits in the loop. The first question about a right raises AnswerAwaited, and the answer is kept with
the user; all answers are forgotten together after `cache_ttl`, and the routes that were found with them. What is no answer is a
refusal, and is not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from typing import Any, Final
from weakref import WeakValueDictionary

import aiohttp

from rabbitpy_broker.auth.backend import HTTP, Backend
from rabbitpy_broker.authentication import Credentials, Login
from rabbitpy_broker.config import AuthHttp, AuthHttpSsl
from rabbitpy_broker.errors import ConfigError
from rabbitpy_broker.questions import AnswerAwaited, Question
from rabbitpy_broker.users import HASHING_ALGORITHM, BackendFault, User

ANSWERS_KEPT: Final = 10_000  # of one user; then all are forgotten
LOGINS_KEPT: Final = 10_000
ANSWER_MAX_BYTES: Final = 65_536
FORMS_AT_ONCE: Final = 100  # connections to the server

Form = tuple[tuple[str, str], ...]


class Answer(Question):
    """What the server has said: `text` in small letters, or what went wrong in `fault`."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.fault = ""


class HttpUser(User):
    """A user whom the server knows; all connections under one name and address share it, and the answers."""

    __slots__ = ("_answers", "_backend", "_ip")
    is_ours = False

    def __init__(self, backend: HttpBackend, name: str, ip: str, tags: tuple[str, ...]) -> None:
        super().__init__(name, "", HASHING_ALGORITHM, tags)
        self._backend = backend
        self._ip = ip
        self._answers: dict[Form, Answer] = {}

    def forget(self) -> None:
        """Forgets the answers, and with them the routes that connections have found."""
        self._answers = {form: answer for form, answer in self._answers.items() if not answer.is_done}
        self.version += 1

    def may_enter(self, vhost: str) -> bool:
        return self._ask("vhost_path", (("vhost", vhost), ("ip", self._ip)))

    def may(self, vhost: str, operation: str, kind: str, name: str) -> bool:
        shown = name or "amq.default"
        what = (("vhost", vhost), ("resource", kind), ("name", shown), ("permission", operation))
        return self._ask("resource_path", what)

    def may_use_key(self, vhost: str, operation: str, exchange: str, key: str) -> bool:
        what = (("vhost", vhost), ("resource", "topic"), ("name", exchange), ("permission", operation))
        context = (("routing_key", key), ("variable_map.username", self.name), ("variable_map.vhost", vhost))
        return self._ask("topic_path", what, context)

    def _ask(self, path: str, what: Form, context: Form = ()) -> bool:
        form = (("username", self.name), *what, ("tags", " ".join(self.tags)), *context)
        key = (("", path), *form)
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= ANSWERS_KEPT:
                self.forget()
            answer = self._answers[key] = self._backend.ask(path, form)
        if not answer.is_done:
            raise AnswerAwaited(answer)
        if answer.text in ("allow", "deny"):
            return answer.text == "allow"
        del self._answers[key]
        raise BackendFault(HTTP, answer.fault or f"bad response {answer.text!r}")


class HttpBackend(Backend):
    """Asks the server. `keeps_logins`: a log-in that was let in need not be asked about again for `ttl_s`."""

    name = "http"

    def __init__(self, config: AuthHttp, ttl_s: float, log: Any, *, keeps_logins: bool) -> None:
        self._config = config
        self._ttl_s = ttl_s
        self.log = log
        self._keeps_logins = keeps_logins
        self._logins: dict[tuple[str, bytes], tuple[float, str]] = {}
        self._users: WeakValueDictionary[tuple[str, str], HttpUser] = WeakValueDictionary()
        self._tls = _client_tls(config.ssl_options)
        self._session: aiohttp.ClientSession | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._forgetting: asyncio.TimerHandle | None = None

    # -- logging in -------------------------------------------------------------------------------------------------

    def log_in(self, login: Login) -> User | str:
        credentials = login.credentials
        text = self._kept_login(credentials)
        if not text:
            asked = login.asked.get(self)
            answer = asked if isinstance(asked, Answer) else self._ask_login(login)
            if not answer.is_done:
                raise AnswerAwaited(answer)
            text = answer.text
            if answer.fault:
                return f"the HTTP back end did not answer: {answer.fault}"
        allowed, *tags = text.split() or [""]
        if allowed == "deny":
            return "Denied by the backing HTTP service"
        if allowed != "allow":
            return f"the HTTP back end gave a bad response {text!r}"
        self._keep_login(credentials, text)
        return self._user(credentials, tuple(dict.fromkeys(tags)))

    def authorize(self, login: Login, name: str) -> User | str:
        found = self.log_in(login)
        return found if isinstance(found, str) or found.name == name else f"user '{name}' is another one here"

    def _ask_login(self, login: Login) -> Answer:
        name, password = login.credentials.name, login.credentials.password
        form: Form = (("username", name),) if password is None else (("username", name), ("password", password))
        answer = login.asked[self] = self.ask("user_path", form)
        return answer

    def _user(self, credentials: Credentials, tags: tuple[str, ...]) -> HttpUser:
        key = (credentials.name, credentials.ip)
        user = self._users.get(key)
        if user is None:
            user = self._users[key] = HttpUser(self, *key, tags)
        elif user.tags != tags:
            user.tags = tags
            user.forget()
        return user

    def _kept_login(self, credentials: Credentials) -> str:
        expires, text = self._logins.get(_login_key(credentials), (0.0, "")) if self._keeps_logins else (0.0, "")
        return text if time.monotonic() < expires else ""

    def _keep_login(self, credentials: Credentials, text: str) -> None:
        if self._keeps_logins and not self._kept_login(credentials):
            if len(self._logins) >= LOGINS_KEPT:
                self._logins.clear()
            self._logins[_login_key(credentials)] = (time.monotonic() + self._ttl_s, text)

    # -- asking -----------------------------------------------------------------------------------------------------

    def ask(self, path: str, form: Form) -> Answer:
        """Puts a question to the server."""
        answer = Answer()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._fetch(path, form, answer))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        if self._forgetting is None:
            self._forgetting = loop.call_later(self._ttl_s, self._forget)
        return answer

    async def _fetch(self, path: str, form: Form, answer: Answer) -> None:
        url: str = getattr(self._config, path)
        try:
            if self._config.http_method == "get":
                asked = self._opened().get(url, params=form)
            else:
                asked = self._opened().post(url, data=dict(form))
            async with asked as response:
                body = await response.content.read(ANSWER_MAX_BYTES)
                text = body.decode("utf-8", "replace").strip()
                if response.status in (200, 201):
                    answer.text = text.lower()
                else:
                    answer.fault = f"status {response.status}: {text[:200]}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            answer.fault = str(error) or type(error).__name__
        except asyncio.CancelledError:
            answer.fault = "the broker stops"
            raise
        finally:
            if answer.fault:
                self.log.warning("auth.backend_failed", backend=self.name, url=url, reason=answer.fault)
            answer.finish()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=self._config.request_timeout / 1000, sock_connect=self._config.connection_timeout / 1000
            )
            connector = aiohttp.TCPConnector(limit=FORMS_AT_ONCE, ssl=self._tls)
            self._session = aiohttp.ClientSession(
                timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    def _forget(self) -> None:
        """All answers; whoever is connected asks again."""
        self._forgetting = None
        for user in list(self._users.values()):
            user.forget()

    async def stop(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


def _login_key(credentials: Credentials) -> tuple[str, bytes]:
    """Without the password, which is not to lie in memory."""
    password = credentials.password
    known = b"" if password is None else hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
    return credentials.name, known


def _client_tls(options: AuthHttpSsl) -> ssl.SSLContext:
    """Raises ConfigError for certificates that cannot be read."""
    try:
        context = ssl.create_default_context(cafile=options.cacertfile or None)
        if options.certfile:
            context.load_cert_chain(options.certfile, options.keyfile or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"auth_http.ssl_options: certificates cannot be loaded: {error}") from None
    if options.verify == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
