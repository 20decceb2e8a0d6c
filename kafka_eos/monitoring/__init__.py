"""Views of a running job: metrics, the terminal and the dashboard. Rule: a view never controls the job."""
