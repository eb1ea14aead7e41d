# One image for every process of Everstep; the command says which.
FROM python:3.13-slim AS build
WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN pip install --no-cache-dir uv
COPY agent_domain agent_domain
COPY workflows workflows
COPY activities activities
COPY broadcast_gateway broadcast_gateway
COPY everstep everstep
RUN uv sync --locked --no-dev --no-editable --extra mcp

FROM python:3.13-slim
# Commands of agents run in it, where the container is allowed to: see docs/deployment.md.
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home everstep
COPY --from=build /app/.venv /app/.venv
ENV PATH=/app/.venv/bin:$PATH
USER everstep
WORKDIR /home/everstep
CMD ["everstep", "worker"]
