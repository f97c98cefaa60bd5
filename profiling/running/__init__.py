"""Working a plan off: chunks, resumption, repetition of noisy entries, several GPUs, Ray."""

from gkestimator.profiling.running.jobs import RunOptions
from gkestimator.profiling.running.machine import Machine
from gkestimator.profiling.running.report import RunReport
from gkestimator.profiling.running.run import run_plan
from gkestimator.profiling.running.supervise import Limits

__all__ = ["Limits", "Machine", "RunOptions", "RunReport", "run_plan"]
