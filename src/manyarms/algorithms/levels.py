"""At which grain a chunk of actions is weighed."""

#: A number of an action, an action, or a whole chunk of them.
LEVELS = ("token_level", "action_level", "chunk_level")
