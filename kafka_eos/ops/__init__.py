"""Tools that operators run beside a job: the doctor, and replay of dead letters."""
