"""How requests enter: an endpoint over HTTP that speaks OpenAI's protocol, for one Coordinator. Torch-free."""
