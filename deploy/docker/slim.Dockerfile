# Everything but the GPU worker: producer, uploader, monitor, rq-dashboard. No torch in here.
#
# Behind a mirror: --build-arg BASE_IMAGE=… --build-arg PIP_INDEX_URL=…, or keep credentials out of
# the image's history with --secret id=pipconf,src=pip.conf
ARG BASE_IMAGE=python:3.12.11-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# Dependencies before code: this layer changes only when they do. The package here is a stub.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN --mount=type=secret,id=pipconf,target=/etc/pip.conf \
    mkdir hiddenfeed && touch hiddenfeed/__init__.py \
    && python -m venv /opt/venv \
    && if [ -z "$PIP_INDEX_URL" ]; then unset PIP_INDEX_URL; fi \
    && if [ -z "$PIP_EXTRA_INDEX_URL" ]; then unset PIP_EXTRA_INDEX_URL; fi \
    && /opt/venv/bin/pip install -c constraints.txt ".[producer,uploader,monitor]" \
    && /opt/venv/bin/pip uninstall -y hiddenfeed \
    && ! /opt/venv/bin/python -c "import torch" 2>/dev/null

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 hiddenfeed \
    && useradd --uid 10001 --gid 10001 --create-home hiddenfeed \
    && install -d -o 10001 -g 10001 /spool /models /cache
COPY --from=dependencies /opt/venv /opt/venv
WORKDIR /app
COPY hiddenfeed hiddenfeed
COPY common common
COPY producer producer
COPY uploader uploader
COPY monitor monitor
COPY examples examples
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HOME=/cache/huggingface
USER 10001:10001
CMD ["python", "-m", "monitor", "--help"]
