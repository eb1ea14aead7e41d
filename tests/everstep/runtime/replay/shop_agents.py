"""The agents that a setting names."""

from tests.everstep.runtime.replay.shop import a_desk

agents = [a_desk()]
