"""The file sink: staging, commit by rename or by completing an upload, and recovery."""
