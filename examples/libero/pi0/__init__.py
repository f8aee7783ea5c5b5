"""The names under which RIPT-VLA's users import PI0 and its runners; what they find is manyarms."""
