# The GPU worker. As it stands it computes on the CPU and carries the demo's model; with
# TORCH_INDEX_URL= (empty) torch comes from the package index, which on Linux is the CUDA build.
#
# Behind a mirror: --build-arg BASE_IMAGE=… PIP_INDEX_URL=… TORCH_INDEX_URL=…, or
# --secret id=pipconf,src=pip.conf
ARG BASE_IMAGE=python:3.12.11-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN --mount=type=secret,id=pipconf,target=/etc/pip.conf \
    mkdir hiddenfeed && touch hiddenfeed/__init__.py \
    && python -m venv /opt/venv \
    && if [ -z "$PIP_INDEX_URL" ]; then unset PIP_INDEX_URL; fi \
    && if [ -z "$PIP_EXTRA_INDEX_URL" ]; then unset PIP_EXTRA_INDEX_URL; fi \
    && /opt/venv/bin/pip install -c constraints.txt ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch \
    && /opt/venv/bin/pip install -c constraints.txt ".[gpu-worker]" gguf \
    && /opt/venv/bin/pip uninstall -y hiddenfeed

FROM dependencies AS demo-model
COPY hiddenfeed /app/hiddenfeed
COPY common /app/common
COPY gpu_worker /app/gpu_worker
ENV PYTHONPATH=/app
RUN --mount=type=secret,id=pipconf,target=/etc/pip.conf \
    if [ -z "$PIP_INDEX_URL" ]; then unset PIP_INDEX_URL; fi \
    && if [ -z "$PIP_EXTRA_INDEX_URL" ]; then unset PIP_EXTRA_INDEX_URL; fi \
    && /opt/venv/bin/python -m gpu_worker demo-model --dest /opt/models/smollm2-135m-instruct

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 hiddenfeed \
    && useradd --uid 10001 --gid 10001 --create-home hiddenfeed \
    && install -d -o 10001 -g 10001 /spool /models /cache
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=demo-model /opt/models /opt/models
WORKDIR /app
COPY hiddenfeed hiddenfeed
COPY common common
COPY gpu_worker gpu_worker
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HOME=/cache/huggingface
USER 10001:10001
CMD ["python", "-m", "gpu_worker"]
