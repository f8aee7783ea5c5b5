"""OpenVLA-OFT: a vision-language-action model that gives a chunk of actions in one pass."""
