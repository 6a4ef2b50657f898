from tests.fault_simulation.campaign import main

main()
