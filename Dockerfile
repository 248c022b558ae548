# An image of fedraa for one machine and for Kubernetes.
#   CPU:  docker build --tag fedraa:cpu .
#   CUDA: docker build --tag fedraa:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
FROM python:3.11-slim-bookworm

# PyPI has the CUDA builds of PyTorch. This index has the CPU builds, which are several gigabytes smaller.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# The number of the user who owns the files that a run writes into a mounted folder.
ARG UID=1000

# The health checks of KubeRay call wget.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/*

COPY . /src
RUN pip install --no-cache-dir --constraint /src/constraints.txt --extra-index-url "$TORCH_INDEX" /src \
    && rm -rf /src

RUN useradd --create-home --uid "$UID" fedraa \
    && install --directory --owner "$UID" /home/fedraa/runs
# Kubernetes accepts only a number as a user that is not root.
USER $UID
WORKDIR /home/fedraa
ENTRYPOINT ["fedraa"]
CMD ["--help"]
