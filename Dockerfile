# The broker as a container: a wheel compiled in one stage, and an image without compiler in the next.
#
#   docker build -t rabbitpy-broker .
#   docker run -p 5672:5672 -p 15692:15692 -v rabbitpy:/var/lib/rabbitpy -e RABBITPY_DEFAULT_USER=me -e RABBITPY_DEFAULT_PASS=... rabbitpy-broker
#
# BASE is any Debian-like image with Python 3.11 or later and its venv module as python3; both stages use it, because a
# compiled wheel runs only on the Python it was built for. DEV_PACKAGES is what building needs beyond it.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG DEV_PACKAGES="gcc libc6-dev"
RUN apt-get update \
    && apt-get install -y --no-install-recommends ${DEV_PACKAGES} \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/rabbitpy
COPY . /src
# A missing compiler is an error here: an image never runs interpreted unnoticed.
RUN RABBITPY_COMPILE=1 /opt/rabbitpy/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src \
    && /opt/rabbitpy/bin/pip install --no-cache-dir /wheels/*.whl

FROM ${BASE}
RUN useradd --system --uid 999 --home-dir /var/lib/rabbitpy --create-home --shell /usr/sbin/nologin rabbitpy
COPY --from=build /opt/rabbitpy /opt/rabbitpy
COPY config/rabbitpy.toml /etc/rabbitpy/rabbitpy.toml
ENV PATH=/opt/rabbitpy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RABBITPY_DATA_DIR=/var/lib/rabbitpy
USER rabbitpy
WORKDIR /var/lib/rabbitpy
VOLUME /var/lib/rabbitpy
EXPOSE 5672 5671 15672 15692
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-m", "rabbitpy_broker.healthcheck", "--config", "/etc/rabbitpy/rabbitpy.toml"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["rabbitpy-broker", "--config", "/etc/rabbitpy/rabbitpy.toml"]
