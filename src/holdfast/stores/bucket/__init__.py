"""State in a bucket: `store` has the verbs; each of the other modules has one part that they use."""

from holdfast.stores.bucket.store import BucketStore

__all__ = ["BucketStore"]
