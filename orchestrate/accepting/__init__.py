"""Is a rented host worth keeping? `deep` plans one case for each host and reads its record, `judging` judges it."""
