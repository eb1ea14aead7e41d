"""The agents of these tests: those of the HTTP API's tests, and one that writes slowly."""

from tests.everstep.http_api.clerk import CHIEF, CLERK, OTHER

agents = [CLERK, CHIEF, OTHER]
