"""`gristmilld doctor`: looks at everything that ``up`` with the same settings would need, and says how to mend it.

Each part gives `Finding`s and raises nothing that a sick set-up can cause. *fail* means that the daemon does not start
or can't work like this; *warn* that it works, but something is unsafe, slow or about to run out. Nothing is changed but
one key of the store that is written and lives for a second; where no store is given, the private one is started for
as long as it is looked at. No key, password or prompt is shown.
"""
