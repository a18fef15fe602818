# An image of stillbox and stillbox-legacy for one kind of device:
#   docker build --build-arg VARIANT=cuda --tag stillbox:cuda .
# VARIANT: cpu, cuda (NVIDIA) or tpu. EXTRAS: more extras of pyproject.toml, such as ray or ray,openvino.
# The CUDA libraries are packages of Python; the host needs the driver and NVIDIA's container toolkit.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
ARG VARIANT=cpu
ARG EXTRAS=""
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY stillbox stillbox
COPY packages/legacy packages/legacy
# uv compares every file with the hashes of constraints.txt, as `make setup` does.
RUN set -eu; \
    case "$VARIANT" in \
    cpu) extras="$EXTRAS" ;; \
    cuda | tpu) extras="$VARIANT${EXTRAS:+,$EXTRAS}" ;; \
    *) echo "VARIANT is cpu, cuda or tpu, not $VARIANT" >&2; exit 1 ;; \
    esac; \
    sed -n '/^uv==/,/[^\\]$/p' constraints.txt > uv.txt; \
    python -m venv /opt/stillbox; \
    /opt/stillbox/bin/python -m pip install --no-cache-dir --require-hashes --requirement uv.txt; \
    /opt/stillbox/bin/uv pip install --no-cache --python /opt/stillbox/bin/python \
    --constraint constraints.txt --build-constraints constraints.txt ".${extras:+[$extras]}" ./packages/legacy

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/stillbox /opt/stillbox
# KubeRay asks Ray for its health with wget, unless it and Ray (2.53) are of 2026 or later.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home stillbox
USER 1000
WORKDIR /home/stillbox
ENV PATH=/opt/stillbox/bin:$PATH
CMD ["stillbox", "doctor"]
