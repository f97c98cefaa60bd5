"""Read, check and write the documents around placement: workload, cluster, plan and simulation."""

from gkestimator.documents.cluster import Cluster, ElasticGpu, GpuCount, read_cluster
from gkestimator.documents.plan import (
    LanguageReplica,
    ModelOutlook,
    PlacedGpu,
    PlacementPlan,
    PlanTotals,
    Replica,
    Unserved,
    plan_document,
    plan_json,
    read_plan,
)
from gkestimator.documents.workload import (
    Application,
    LanguageLoad,
    ModelLoad,
    Stage,
    Workload,
    read_workload,
)

__all__ = [
    "Application",
    "Cluster",
    "ElasticGpu",
    "GpuCount",
    "LanguageLoad",
    "LanguageReplica",
    "ModelLoad",
    "ModelOutlook",
    "PlacedGpu",
    "PlacementPlan",
    "PlanTotals",
    "Replica",
    "Stage",
    "Unserved",
    "Workload",
    "plan_document",
    "plan_json",
    "read_cluster",
    "read_plan",
    "read_workload",
]
