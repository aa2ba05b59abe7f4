"""Searching settings with Optuna: resumable, shared by workers that may be killed, drawn as the papers draw it."""

from .plan import Plan, jobs_of, parse_param
from .storage import study_of
from .work import Trial, sweep_all

__all__ = ["Plan", "Trial", "jobs_of", "parse_param", "study_of", "sweep_all"]
