# Image of the aggregator. Build it in the root of a checkout:
#   docker build -f deploy/containers/aggregator.Dockerfile -t shoal-aggregator:0.1.0 .
# With CUDA, for means that compare models, and for simulations and exports beside the service:
#   docker build -f deploy/containers/aggregator.Dockerfile --build-arg TORCH=cuda --build-arg EXTRAS=edge,simulation,postgres,s3 \
#     -t shoal-aggregator:0.1.0-cuda .
ARG BASE=docker.io/library/debian:12.11-slim

FROM ${BASE} AS python
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get upgrade -y --no-install-recommends \
 && apt-get install -y --no-install-recommends ca-certificates python3 tzdata \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

FROM python AS build
ARG TORCH=cpu
ARG EXTRAS=aggregator,postgres,s3
ARG SOURCE_DATE_EPOCH=1767225600
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /uv \
 && /uv/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt uv \
 && /uv/bin/uv venv --python /usr/bin/python3 /opt/shoal
COPY . .
# torch's index for CPUs has a build of a tenth of the size; PyPI's build for x86-64 includes CUDA.
RUN case "${TORCH}" in cpu) set -- --torch-backend cpu ;; cuda) set -- ;; *) echo "TORCH=${TORCH}: expected cpu or cuda" >&2; exit 1 ;; esac \
 && /uv/bin/uv pip install --no-cache --compile-bytecode --index-strategy unsafe-best-match --python /opt/shoal/bin/python "$@" \
      -c constraints.txt -b constraints.txt ".[${EXTRAS}]"

FROM python AS aggregator
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="shoal-aggregator" \
      org.opencontainers.image.description="The aggregator of a Shoal fleet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/shoal /opt/shoal
RUN groupadd --gid 10001 shoal \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shoal \
 && install -d -o 10001 -g 10001 -m 0700 /var/lib/shoal
# The root file system may be read-only: the service writes to its folder and to /tmp, which must be a tmpfs then.
ENV PATH=/opt/shoal/bin:/usr/bin:/bin \
    USER=shoal \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    PYTHONDONTWRITEBYTECODE=1 \
    SHOAL_SERVE_FOLDER=/var/lib/shoal \
    SHOAL_SERVE_HOST=0.0.0.0 \
    SHOAL_SERVE_LOG_FORMAT=json \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 10001:10001
VOLUME /var/lib/shoal
EXPOSE 8080 8443
HEALTHCHECK --interval=30s --timeout=10s --start-period=300s --retries=3 \
  CMD ["/opt/shoal/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=5)"]
ENTRYPOINT ["/opt/shoal/bin/shoal"]
CMD ["serve"]
