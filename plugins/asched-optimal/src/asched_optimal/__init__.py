"""A batch action that places gangs by mixed-integer programming."""

from asched_optimal.action import Optimal as Optimal
