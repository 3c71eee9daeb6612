"""The bucket port: four places that keep named bytes and can replace them only if nobody else did, read in `base`."""
