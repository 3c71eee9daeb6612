"""Durable state: one contract (`base`), one suite that tests it (`holdfast.testing.conformance`), several stores."""
