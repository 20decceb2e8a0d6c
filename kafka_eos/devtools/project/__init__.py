"""``kafka-eos init``: a project with a pipeline, its tests and all that runs it, from templates in this package."""

from kafka_eos.devtools.project.project_files import TEMPLATES, create_project

__all__ = ["TEMPLATES", "create_project"]
