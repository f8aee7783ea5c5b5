# docker build -t manyarms . && docker run --rm -it manyarms demo
FROM python:3.11-slim-bookworm

RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends libosmesa6 libegl1 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /manyarms
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY src src
# The pinned versions constrain what is installed; only what the package needs is.
RUN pip install --no-cache-dir --constraint requirements/dev.txt .

# Workers are processes of their own; the container's init must reap what a killed one leaves.
ENTRYPOINT ["manyarms"]
CMD ["--help"]
