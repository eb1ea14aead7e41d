"""What every test runs under."""

from hypothesis import HealthCheck, settings

from tests.services import services

# Here and nowhere else: imported into several conftests, each would start servers of its own.
__all__ = ["services"]

# How long an example takes says more about the machine than about the code. All else stays as hypothesis
# chose it, which is something else where the variable CI is set.
settings.register_profile("everstep", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everstep")
