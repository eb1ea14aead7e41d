"""The console: a site of static files that people use in a browser, and the headers it is served with.

Its program is the ES modules in `static/`, which run as they are: there is no build. It talks to the HTTP API
and to the gateway like any other client, so this package knows neither, and imports nothing of Everstep.
"""
