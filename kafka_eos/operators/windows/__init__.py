"""Windows of event time: what a key has in each, when event time has come to its end.

base       what all of them do: rows that come too late, results, state
paned      windows that are made of panes: tumbling, sliding, calendar days
sessions   windows that follow from their rows, and become one
contents   what a window holds of its rows
"""
