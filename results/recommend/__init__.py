"""Which GPU to rent: questions, evidence, rankings, and the sentences that say it."""
