"""The conformance suite: what every simulator must hold to, ours and third parties'.

In a test file of your own:

    @pytest.mark.parametrize("check", manyarms.testing.CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check):
        check(manyarms.testing.Subject("my_package:MySimulator"))

or on the command line: ``manyarms check my_package:MySimulator``.
"""

from manyarms.testing.conformance import CHECKS, Subject, check_simulator

__all__ = ["CHECKS", "Subject", "check_simulator"]
