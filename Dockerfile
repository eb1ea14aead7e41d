# One image for every process of Everstep; the command says which.
FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build
WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
# The version that uv.lock names.
RUN pip install --no-cache-dir uv==0.13.8
COPY agent_domain agent_domain
COPY workflows workflows
COPY activities activities
COPY broadcast_gateway broadcast_gateway
COPY everstep everstep
RUN uv sync --locked --no-dev --no-editable --extra mcp --extra nats --extra otel --extra s3

FROM python:3.13.14-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6
# Commands of agents run in it, where the container is allowed to: see docs/deployment.md.
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
# By its number, which Kubernetes compares with `runAsNonRoot`.
RUN useradd --create-home --uid 1000 everstep
COPY --from=build /app/.venv /app/.venv
ENV PATH=/app/.venv/bin:$PATH
USER 1000
WORKDIR /home/everstep
CMD ["everstep", "worker"]
