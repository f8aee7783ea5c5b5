"""π0: a vision-language model that sees and reads, and an expert that turns noise into actions step by step."""
