// An SDRAM of 32 MiB with 16 data bits, as golden/fpga/sdram.py defines it.
// `violation` is the first rule that was violated, by the numbers of Rule in that file.
module sdram #(parameter PERIOD_PS = 40000, parameter START_US = 200, parameter ROW_BITS = 13) (
  input clk,
  input enable,
  input [3:0] command,
  input [1:0] bank,
  input [12:0] address,
  input [1:0] mask,
  input [15:0] data,
  input drive,
  output reg [15:0] bus,
  output reg [3:0] violation
);
  localparam FILL = 16'hDEAD;
  // In picoseconds; "never" is far in the past.
  localparam longint PERIOD = 64'(PERIOD_PS), NEVER = -(64'd1 << 56);
  localparam longint RCD = 21000, RP = 21000, RAS = 45000, RC = 67000, RFC = 70000, WR = 20000,
    RRD = 15000, LONGEST = 100000000;
  localparam longint START = 64'(START_US) * 1000000, REFRESH = 7812500;
  reg [15:0] words [0:(1 << (ROW_BITS + 11)) - 1];
  reg [3:0] active = 0;
  reg [12:0] rows [0:3];
  longint activated [0:3], written [0:3], precharged [0:3];
  longint refreshed = NEVER, moded = NEVER, newest = NEVER, now = 0, origin = 0, refreshes = 0;
  reg begun = 0, ready = 0;
  // Words read at the last two edges, and masks at the last one.
  reg [1:0] reads = 0;
  reg [15:0] word_0 = 0;
  reg [1:0] masks = 3;
  reg [3:0] rule;
  wire all = (command <= 1) || (command == 2 && address[10]);
  wire [ROW_BITS+10:0] place = {rows[bank][ROW_BITS-1:0], bank, address[8:0]};
  wire [15:0] keep = {{8{mask[1]}}, {8{mask[0]}}};
  wire [15:0] lost = {{8{masks[1]}}, {8{masks[0]}}};
  integer one;

  initial begin
    violation = 0;
    bus = FILL;
    for (one = 0; one < 4; one = one + 1) begin
      activated[one] = NEVER;
      written[one] = NEVER;
      precharged[one] = NEVER;
      rows[one] = 0;
    end
  end

  function automatic logic soon(input longint since, input longint wait_ps);
    return now - since < wait_ps;
  endfunction

  // Whether `wait_ps` have not passed since the times of the banks that a command is about.
  function automatic logic any_soon(input longint times [0:3], input longint wait_ps);
    any_soon = 0;
    for (int number = 0; number < 4; number++)
      if (all || bank == 2'(number)) any_soon |= soon(times[number], wait_ps);
  endfunction

  function automatic logic open_wrong();
    open_wrong = 0;
    for (int number = 0; number < 4; number++)
      if ((all || bank == 2'(number)) && active[number])
        open_wrong |= soon(activated[number], RAS) || !soon(activated[number], LONGEST + 1);
  endfunction

  always_comb begin
    rule = 0;
    if (!enable && (begun || command <= 6)) rule = 1;
    else if (ready && (now - origin) / REFRESH - refreshes > 2) rule = 14;
    else if (command < 7) begin
      if (now < START || (!begun && !(command == 2 && address[10]))
          || (begun && !ready && command >= 3)) rule = 2;
      else if (command == 6 || (command[3:1] == 2 && address[10])) rule = 4;
      else if (command == 0 && (address[8:0] != 9'h020 || bank != 0 || refreshes < 8)) rule = 3;
      else if ((command <= 1 && active != 0) || (command == 3 && active[bank])) rule = 5;
      else if (command[3:1] == 2 && !active[bank]) rule = 6;
      else if (command[3:1] == 2 && soon(activated[bank], RCD)) rule = 7;
      else if (command != 2 && any_soon(precharged, RP)) rule = 8;
      else if (command == 2 && open_wrong()) rule = 9;
      else if ((command == 1 || command == 3)
               && (any_soon(activated, RC) || soon(newest, RRD))) rule = 10;
      else if (soon(refreshed, RFC)) rule = 11;
      else if (soon(moded, 2 * PERIOD)) rule = 12;
      else if (command == 2 && any_soon(written, WR > 2 * PERIOD ? WR : 2 * PERIOD)) rule = 13;
      else if (command == 4 && !drive) rule = 15;
    end
    if (rule == 0 && drive && reads != 0) rule = 15;
  end

  always @(posedge clk) begin
    now <= now + PERIOD;
    if (violation == 0) violation <= rule;
    reads <= {1'(enable && rule == 0 && command == 5), reads[1]};
    word_0 <= words[place];
    masks <= mask;
    bus <= reads[1] ? (word_0 & ~lost) | (FILL & lost) : FILL;
    if (enable && rule == 0)
      case (command)
        0: begin
          if (!ready) begin
            origin <= now;
            refreshes <= 0;
          end
          ready <= 1;
          moded <= now;
        end
        1: begin
          refreshed <= now;
          refreshes <= refreshes + 1;
        end
        2: begin
          begun <= 1;
          for (one = 0; one < 4; one = one + 1)
            if (address[10] || bank == 2'(one)) begin
              active[one] <= 0;
              precharged[one] <= now;
            end
        end
        3: begin
          active[bank] <= 1;
          rows[bank] <= address;
          activated[bank] <= now;
          newest <= now;
        end
        4: begin
          words[place] <= (words[place] & keep) | (data & ~keep);
          written[bank] <= now;
        end
        default: ;
      endcase
  end
endmodule
