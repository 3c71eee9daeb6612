"""The bucket port: four places that keep named bytes and replace them only if they are unchanged; start with `base`."""
