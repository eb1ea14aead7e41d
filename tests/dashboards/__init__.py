"""The dashboards of Grafana on real data: an installation under load, Prometheus, and pictures of the panels.

Grafana itself is in no package index, so `drawing.py` draws what a panel's queries return.

| module | concern |
|---|---|
| `prometheus.py` | Debian's Prometheus, and its answers |
| `drawing.py` | a dashboard as an SVG picture |
| `__main__.py` | `make dashboards`: an installation that people use while a worker is killed |
"""
