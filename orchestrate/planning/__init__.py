"""What will run where: facts of hosts, cases, repeats, cost."""
