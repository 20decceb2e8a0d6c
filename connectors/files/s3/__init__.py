"""Files in a bucket: a staged file is a multipart upload, and a commit completes it.

Rule: only ``bucket`` imports boto3; it maps boto3's errors to errors of the operating system.
"""

from __future__ import annotations
