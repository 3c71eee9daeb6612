"""Resources: clients, models, pools that handlers are handed by name, opened and closed for them."""
