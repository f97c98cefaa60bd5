# gkest on the CPU: estimates need no GPU, no CUDA and no driver.
#   docker build -t gkest . && docker run --rm gkest demo
#   docker run --rm -v "$PWD:/data" gkest estimate model.onnx --gpu T4
ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY gkestimator gkestimator
COPY profiling profiling
COPY cli cli
COPY datasets datasets
COPY models models
RUN python -m venv /opt/gkest && /opt/gkest/bin/pip install --no-cache-dir . && /opt/gkest/bin/pip uninstall -y pip

FROM python:${PYTHON}-slim
COPY --from=build /opt/gkest /opt/gkest
RUN useradd --uid 1000 --create-home gkest && mkdir /data && chown gkest /data
ENV PATH=/opt/gkest/bin:$PATH PYTHONUTF8=1
USER 1000
WORKDIR /data
ENTRYPOINT ["gkest"]
CMD ["--help"]
