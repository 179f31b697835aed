# Image of a helper of secret sums. Build it in the root of a checkout:
#   docker build -f deploy/containers/helper.Dockerfile -t shoal-helper:0.1.0 .
ARG BASE=docker.io/library/debian:12.11-slim

FROM ${BASE} AS python
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get upgrade -y --no-install-recommends \
 && apt-get install -y --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

FROM python AS build
ARG SOURCE_DATE_EPOCH=1767225600
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /uv \
 && /uv/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt uv \
 && /uv/bin/uv venv --python /usr/bin/python3 /opt/shoal
COPY . .
RUN /uv/bin/uv pip install --no-cache --compile-bytecode --python /opt/shoal/bin/python -c constraints.txt -b constraints.txt .

FROM python AS helper
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="shoal-helper" \
      org.opencontainers.image.description="A helper of secret sums in a Shoal fleet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/shoal /opt/shoal
RUN groupadd --gid 10001 shoal \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shoal \
 && install -d -o 10001 -g 10001 -m 0700 /state
# The root file system may be read-only: the helper writes to /state and to /tmp, which must be a tmpfs then.
ENV PATH=/opt/shoal/bin:/usr/bin:/bin \
    USER=shoal \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    SHOAL_ALIVE_FILE=/tmp/alive
WORKDIR /tmp
USER 10001:10001
VOLUME /state
EXPOSE 9110
# The helper touches the file twice a second, but not while it adds up masks; a sum over thousands of devices may take minutes.
HEALTHCHECK --interval=60s --timeout=10s --start-period=300s --retries=3 CMD ["/bin/sh", "-c", "find /tmp/alive -mmin -10 | grep -q ."]
ENTRYPOINT ["/opt/shoal/bin/shoal-helper"]
