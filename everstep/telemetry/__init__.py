"""Metrics, traces and structured logs of a process.

Instruments are shared by the parts of a process, as one process has one page of metrics. This package may
import `everstep.agent_domain` only, so that every other package can count with it.
"""
