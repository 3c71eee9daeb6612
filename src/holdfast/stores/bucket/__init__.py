"""State in a bucket: `store` has the verbs, each of the other files one thing that they rest on."""

from holdfast.stores.bucket.store import BucketStore

__all__ = ["BucketStore"]
