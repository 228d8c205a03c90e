"""What a person sees of hosts, plans and runs."""
