"""How long a run takes before anything like it ran: from the networks' work and the speed of the hosts."""
