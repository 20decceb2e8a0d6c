"""Dead letters after the fact: which there are, and putting the refused records back.

    places      where the dead letters of a source are, and where its records come from
    selection   which of them are meant
    reading     all that are there now, one after the other
    shown       a letter and the counts of many, for people and as JSON
    order       what a replay is told, in all of its processes
    replayed    the job that puts records back: a pipeline like any other, in a file that its workers load
    restored    what a replay can do, and what it has done

Rule: a record that was put back once is never put back again by the same job, whichever of its letters is meant. The
job's own state knows it, and is committed together with the records.
"""
