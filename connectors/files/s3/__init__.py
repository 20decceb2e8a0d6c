"""Files in a bucket: what is staged is a multipart upload, and a commit completes it.

Rule: ``client`` is the only module that imports boto3; its errors end there as errors of the operating system.
"""

from __future__ import annotations
